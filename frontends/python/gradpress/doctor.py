"""python -m gradpress.doctor: what is here, what is missing."""
from __future__ import annotations

import os
import platform
import sys


def main() -> int:
    print(f"python         {platform.python_version()}, {sys.executable}")
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        print(f"torch          missing: {error}; install python3-torch")
        return 1
    print(f"torch          {torch.__version__}, {torch.get_num_threads()} threads")
    if not dist.is_available():
        print("distributed    missing: this torch was built without it")
        return 1
    print(f"torch's gloo   {'here' if dist.is_gloo_available() else 'not here'}" if hasattr(dist, "is_gloo_available")
          else f"torch's gloo   {'here' if hasattr(dist, 'ProcessGroupGloo') else 'not here'}")
    print(f"nccl           {'here; gradpress has never been run on it' if dist.is_nccl_available() else 'not here'}")
    try:
        import gradpress
        from gradpress import _native
        from gradpress._group import own_address
    except ImportError as error:
        print(f"gradpress      does not load: {error}")
        return 1
    print(f"gradpress      {gradpress.__version__}, {os.path.dirname(gradpress.__file__)}; C interface "
          f"{_native.library.gradpress_api_version()}")
    try:
        print(f"address        {own_address()} (GLOO_SOCKET_IFNAME, else the route to MASTER_ADDR)")
    except (OSError, ValueError) as error:
        print(f"address        {error}")
        return 1
    launched = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
                if name in os.environ}
    print(f"launcher       {launched or 'none: start the program with torchrun'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
