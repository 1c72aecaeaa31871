"""The names of NVFlare that this adapter uses. NVFlare has no types, so each is `Any` from here on."""

from typing import Any

from fedcipher._optional import load, require

require("fedcipher.adapters.nvflare", "nvflare", "nvflare")

_dxo: Any = load("nvflare.apis.dxo")
_model: Any = load("nvflare.app_common.abstract.fl_model")
_learnable: Any = load("nvflare.app_common.abstract.model")

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
is_log_streaming_allowed: Any = load("nvflare.app_common.logging.constants").is_log_streaming_allowed
learnable_of: Any = _learnable.make_model_learnable
