"""The kernel store: looked through, filled by one build per kernel, loaded from; packs lie below it, read only.

What a folder, an entry, a lock and an index are is in the modules beside this one.
"""
