"""`python -m jaxsink`."""

import sys

from jaxsink.cli import main

sys.exit(main())
