"""Python's own client against a Hub, for the tests of w4pack's.

    hub.py upload FOLDER NAME    what `hf upload` does, by the LFS protocol
    hub.py cached NAME           the folder of a repository that is in the cache; asks nobody
    hub.py download NAME         fills the cache
"""

import sys

from huggingface_hub import HfApi, snapshot_download

command, *arguments = sys.argv[1:]
if command == "upload":
    folder, name = arguments
    api = HfApi()
    api.create_repo(name, exist_ok=True)
    api.upload_folder(folder_path=folder, repo_id=name, commit_message="by Python")
elif command == "cached":
    print(snapshot_download(arguments[0], local_files_only=True))
elif command == "download":
    print(snapshot_download(arguments[0]))
else:
    sys.exit(f"unknown command {command}")
