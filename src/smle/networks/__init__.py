"""Networks in torch with a certified head behind them."""

from smle.extras import require

require("torch", "Training networks, or running them in torch,")
