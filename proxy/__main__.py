"""`python -m proxy`: the same as the command `slotgate`."""

from proxy.cli import main

if __name__ == "__main__":
    main()
