"""One given kernel on given tensors: held against them, bound to their shapes and strides, launched."""
