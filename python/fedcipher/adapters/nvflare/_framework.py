"""What this adapter uses of NVFlare. NVFlare has no types, so this is the one file that imports it."""

from typing import Any

from fedcipher._optional import load

__all__ = [
    "DXO",
    "Builder",
    "Controller",
    "DataKind",
    "Executor",
    "FLModel",
    "FLModelUtils",
    "FedJob",
    "Filter",
    "FilterType",
    "FrameworkType",
    "MetaKey",
    "ModelLearnableKey",
    "Recipe",
    "ReturnCode",
    "ScriptRunner",
    "Shareable",
    "Task",
    "TransferType",
    "dxo_of",
    "learnable_of",
]

_dxo: Any = load("nvflare.apis.dxo")
_model: Any = load("nvflare.app_common.abstract.fl_model")
_learnable: Any = load("nvflare.app_common.abstract.model")

DXO: Any = _dxo.DXO
DataKind: Any = _dxo.DataKind
dxo_of: Any = _dxo.from_shareable
Filter: Any = load("nvflare.apis.filter").Filter
Executor: Any = load("nvflare.apis.executor").Executor
Controller: Any = load("nvflare.apis.impl.controller").Controller
Task: Any = load("nvflare.apis.controller_spec").Task
Shareable: Any = load("nvflare.apis.shareable").Shareable
ReturnCode: Any = load("nvflare.apis.fl_constant").ReturnCode
FLModel: Any = _model.FLModel
MetaKey: Any = _model.MetaKey
FLModelUtils: Any = load("nvflare.app_common.utils.fl_model_utils").FLModelUtils
ModelLearnableKey: Any = _learnable.ModelLearnableKey
learnable_of: Any = _learnable.make_model_learnable
Builder: Any = load("nvflare.lighter.spec").Builder
Recipe: Any = load("nvflare.recipe.spec").Recipe
FedJob: Any = load("nvflare.job_config.api").FedJob
FilterType: Any = load("nvflare.job_config.defs").FilterType
ScriptRunner: Any = load("nvflare.job_config.script_runner").ScriptRunner
FrameworkType: Any = load("nvflare.fuel.utils.constants").FrameworkType
TransferType: Any = load("nvflare.client.config").TransferType
