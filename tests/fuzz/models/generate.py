"""Random models from seeds, over all rows of the operator table."""

import warnings

from blockbuster_fusion.torch.table.row import TABLE
from fuzz.models.maker import Maker
from fuzz.models.operators import EXTRA, add_line
from fuzz.models.program import Program


def random_model(seed: int) -> Program:
    """A model of 2 to 12 lines."""
    m = Maker(seed)
    r = m.random
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(r.randint(1, 3)):
            m.add_given(m.shape(), m.dtype())
        if m.lengths and not any("n" in g.shape for g in m.given):
            m.add_given(("n", r.choice((1, 4, 8))), m.floats)
        views = [name for name, row in TABLE.items() if row.kind.name == "VIEW"]
        others = [name for name in TABLE if name not in views]
        for _ in range(r.randint(2, 12)):
            pool = r.choices((others, views, [*EXTRA]), (0.6, 0.22, 0.18))[0]
            add_line(m, r.choice(pool))
    return m.program()
