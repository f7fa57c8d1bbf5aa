import sys
from session_checkpoint import main
sys.exit(main())
