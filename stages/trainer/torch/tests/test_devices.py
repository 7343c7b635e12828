"""On a GPU every tensor is where it belongs, and nothing asks for a number before the figures are read.

There is no GPU here: PyTorch computes shapes, types and devices only, and refuses operations across devices and whatever
depends on what a tensor holds.
"""

import contextlib
import unittest
from unittest import mock

import torch
from models import ADAMW, LOSS, MODELS, Count, batch, folder, step
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.attention import varlen

from prl_torch import attention
from prl_torch.batch import Row
from prl_torch.head import _Head
from prl_torch.learner import Learner
from prl_torch.loss import gradient
from prl_torch.optimizer import Updater
from prl_torch.options import Options
from prl_torch.parallel import Group

CUDA = torch.device("cuda", 0)


def move(learner: Learner, row: Row) -> Row:
    """Puts a model and a row on a GPU that does not exist."""
    for module in learner.policy.modules():
        for held, wrap in ((module._parameters, torch.nn.Parameter), (module._buffers, lambda t, _: t)):
            for name, t in held.items():
                if t is not None:
                    held[name] = wrap(torch.empty(t.shape, dtype=t.dtype, device=CUDA), t.requires_grad)
    learner.policy.model.tie_weights()
    return row._map(lambda t: torch.empty(t.shape, dtype=t.dtype, device=CUDA))


class Devices(unittest.TestCase):
    def setUp(self) -> None:
        stack = contextlib.ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(mock.patch.dict(attention.KERNELS))
        stack.enter_context(mock.patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False))
        stack.enter_context(mock.patch("torch.cuda.is_bf16_supported", return_value=True))
        stack.enter_context(mock.patch.object(varlen, "_select_backend", lambda *_, **__: varlen._FLASH_ATTENTION_BACKEND))

    def test_a_step_stays_on_the_gpu(self) -> None:
        for model, options, windows in (
            ("qwen3", Options(dtype="bfloat16", head_tokens=100), {(-1, 0)}),
            ("mistral, sliding window", Options(dtype="bfloat16"), {(7, 0)}),
            ("qwen3", Options(dtype="bfloat16", activation_checkpointing=True), {(-1, 0)}),
            ("qwen3", Options(dtype="bfloat16", lora={"r": 3}), {(-1, 0)}),
        ):
            with self.subTest(model=model, options=options):
                learner, b = Learner(folder(self, MODELS[model]), LOSS, ADAMW, options), batch([300, 1, 40])
                b.ce[5:9] = b.ref_kl[7:12] = 0.5
                row, whole = b.row, step(b)
                learner.policy.kernel = options.kernel(CUDA)
                attention.prepare(learner.policy.kernel, False)
                asked = mock.Mock(side_effect=varlen.varlen_attn)
                if windows:
                    attention.KERNELS["varlen"].keywords["varlen_attn"] = asked
                with FakeTensorMode():
                    row = move(learner, row)
                    logp, entropy = learner.policy(row)
                    d_logp, d_entropy, figures = gradient(LOSS, whole, row, logp.detach().double(), entropy.detach().double())
                    given = _Head.backward(logp.grad_fn, d_logp.float(), d_entropy.float())  # autograd itself wants a device
                    self.assertEqual({t.device for t in given if t is not None}, {CUDA})
                    self.assertEqual({v.device for v in figures.values() if isinstance(v, torch.Tensor)}, {CUDA})
                    params = {n: p for n, p in learner.policy.model.named_parameters() if p.requires_grad}
                    updater = Updater(params, set(), ADAMW, False, Group())
                    with self.assertRaises(DataDependentOutputException):
                        updater.update(1e-2)  # asks for the norm
                    with mock.patch("prl_torch.optimizer.float", return_value=2.0, create=True), Count() as count:
                        self.assertEqual(updater.update(1e-2), (True, 2.0**0.5))
                    self.assertGreater(count.ops["aten::_fused_adamw_"], 0)
                self.assertEqual({call.kwargs["window_size"] for call in asked.call_args_list}, windows)
                self.assertTrue(all(call.args[0].dtype == torch.bfloat16 for call in asked.call_args_list))

    def test_a_compiled_layer_is_one_graph(self) -> None:
        for checkpointing in (False, True):
            with self.subTest(checkpointing=checkpointing):
                learner = Learner(folder(self, MODELS["qwen3"]), LOSS, ADAMW, Options(dtype="bfloat16", activation_checkpointing=checkpointing))
                learner.policy.kernel = "varlen"
                attention.prepare("varlen", True)
                layer, traced = learner.policy.layers()[0], []

                def backend(graph, given):
                    traced.extend(str(n.target) for m in graph.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes)
                    raise KeyError("enough is known")

                layer.forward = torch.compile(layer.forward, dynamic=True, fullgraph=True, backend=backend)
                with self.assertRaisesRegex(torch._dynamo.exc.BackendCompilerFailed, "enough is known"):
                    learner.policy(batch([19, 1, 30]).row)
                self.assertEqual(sum("_varlen_attn" in name for name in traced), 1)
                self.assertEqual(sum("tag_activation_checkpoint" in name for name in traced), checkpointing)
                torch.compiler.reset()


if __name__ == "__main__":
    unittest.main()
