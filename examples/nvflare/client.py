"""NVFlare's hello-numpy with data: softmax regression at each site. Nothing here knows of Fedcipher."""

import numpy as np
import nvflare.client as flare

FEATURES, CLASSES = 20, 5


def data_of(site: str) -> tuple[np.ndarray, np.ndarray]:
    """This site's examples; the sites have different numbers of examples."""
    number = int(site.rpartition("-")[2])
    rng = np.random.default_rng(number)
    count = 100 * number
    labels = rng.integers(0, CLASSES, count)
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    return centres[labels] + rng.normal(size=(count, FEATURES)), labels


def loss_and_gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    scores = x @ weights
    scores = np.exp(scores - scores.max(1, keepdims=True))
    shares = scores / scores.sum(1, keepdims=True)
    loss = -np.log(shares[np.arange(len(y)), y] + 1e-12).mean()
    shares[np.arange(len(y)), y] -= 1
    return float(loss), x.T @ shares / len(y)


def main() -> None:
    flare.init()
    x, y = data_of(flare.get_site_name())
    while flare.is_running():
        model = flare.receive()
        first = weights = np.asarray(model.params["numpy_key"], np.float64).reshape(FEATURES, CLASSES)
        mu = (model.meta or {}).get("fedproxloss_mu", 0.0)
        loss, _ = loss_and_gradient(weights, x, y)
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"loss": loss}))
            continue
        for _ in range(20):
            weights = weights - 0.1 * (loss_and_gradient(weights, x, y)[1] + mu * (weights - first))
        flare.send(
            flare.FLModel(
                params={"numpy_key": weights.astype(np.float32)},
                metrics={"loss": loss},
                meta={"NUM_STEPS_CURRENT_ROUND": len(y)},
            )
        )


if __name__ == "__main__":
    main()
