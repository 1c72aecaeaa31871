"""Writes the job of examples/nvflare under NVFlare's own encryption: the components of its recipe fedavg_he."""

import sys
from pathlib import Path

from he_persistor import FirstModel
from nvflare.apis.dxo import DataKind
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.app_opt.he.intime_accumulate_model_aggregator import HEInTimeAccumulateWeightedAggregator
from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
from nvflare.app_opt.he.model_shareable_generator import HEModelShareableGenerator
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

CLIENT = Path(__file__).resolve().parents[3] / "examples/nvflare/client.py"
SITES, ROUNDS = 3, 3

job = FedJob(name="hello", min_clients=SITES)
aggregator = HEInTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS, weigh_by_local_iter=False)
controller = ScatterAndGather(
    min_clients=SITES,
    num_rounds=ROUNDS,
    wait_time_after_min_received=0,
    aggregator_id=job.to_server(aggregator, id="aggregator"),
    persistor_id=job.to_server(FirstModel(), id="persistor"),
    shareable_generator_id=job.to_server(HEModelShareableGenerator(), id="generator"),
)
job.to_server(controller)
job.to_clients(ScriptRunner(script=str(CLIENT), framework=FrameworkType.NUMPY))
job.to_clients(HEModelDecryptor(), tasks=["train"], filter_type=FilterType.TASK_DATA)
job.to_clients(HEModelEncryptor(weigh_by_local_iter=True), tasks=["train"], filter_type=FilterType.TASK_RESULT)
job.export_job(sys.argv[1])
