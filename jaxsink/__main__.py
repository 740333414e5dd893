"""`python -m jaxsink`."""

import sys

from jaxsink.cli.main import main

sys.exit(main())
