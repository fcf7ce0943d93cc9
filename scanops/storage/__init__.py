"""What the kernel store is made of: entries, files, locks, indexes, roots, and the names kernels go by."""
