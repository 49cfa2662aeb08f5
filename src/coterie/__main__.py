"""`python -m coterie` is the `coterie` command. It imports late, so that an interrupt meanwhile is one line too."""

import os


def main() -> None:
    """Run the command line and exit."""
    try:
        from coterie.cli.main import main as whole

        whole()
    except KeyboardInterrupt:
        os.write(2, b"coterie: interrupted\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
