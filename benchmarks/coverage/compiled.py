"""A model of the zoo as a contender runs it."""

from collections.abc import Callable


def compile_for(
    contender: str, name: str, dtype_name: str, attention: str, *, dynamic: bool
) -> Callable[..., object]:
    """The model as eager runs it, or compiled by a backend."""
    import torch

    from helpers.zoo import ZOO

    model = ZOO[name].build(getattr(torch, dtype_name), attention)
    if contender == "eager":
        return model
    torch._dynamo.reset()
    if contender == "blockbuster":
        import blockbuster_fusion as bb

        bb.register_backend()
    return torch.compile(model, backend=contender, dynamic=dynamic)
