"""The models that Ollamas have on disk, changed through slotgate: pull, push, create, copy, delete, and uploaded blobs.

A *model store* is one directory of models; backends may share it. Each change runs once per model store, on one of its
backends, and never two at a time: Ollamas that share a directory do not know of each other's writes.
"""
