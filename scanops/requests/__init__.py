"""What is asked: the arguments of a call, checked, and where its tensors lie."""
