"""`python -m padless` is `padless`."""

from padless.cli.main import main

main()
