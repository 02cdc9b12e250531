"""What slotgate tells about itself: log lines and request lines. Nothing here decides or moves bytes."""
