"""Runs in NVFlare's environment: `nvflare_session.py KIT JOB FOLDER [SECONDS]` submits a job and fetches its result.

Prints the job's id when it is submitted, then its status.
"""

import sys

from nvflare.fuel.flare_api.flare_api import new_secure_session

kit, job, folder, *seconds = sys.argv[1:]
session = new_secure_session("admin@nvidia.com", kit, timeout=60)
try:
    number = session.submit_job(job)
    print("job", number, flush=True)
    session.monitor_job(number, timeout=float(seconds[0] if seconds else 180))
    status = session.get_job_meta(number)["status"]
    print("status", status, flush=True)
    print("result", session.download_job_result(number, folder), flush=True)
finally:
    session.close()
