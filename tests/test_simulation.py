"""Figure 1 and the regret: the statement in NumPy, the streams, the bound, what comes out."""

import math

import keras
import numpy as np
import pytest

import keras_adanorm
from examples.study import figures, simulation

SHORT = {
    "alpha": 0.1,
    "beta_1": 0.9,
    "beta_2": 0.99,
    "lambda": 0.9,
    "dimensions": 3,
    "steps": 200,
    "repeats": 2,
}


@pytest.mark.parametrize("name", simulation.NAMES)
def test_statement_is_the_packages_optimizer(name):
    """With a constant beta_1 both take the same steps; the learning rate falls as 1/sqrt(t)."""
    gradients = np.random.default_rng(0).normal(size=(30, 4)) * np.geomspace(1, 0.01, 30)[:, None]
    gamma, start = simulation.NAMES[name], np.array([0.3, -0.2, 0.1, 0.0])
    walk = simulation.descend(
        lambda t, w: gradients[t - 1][None], start[None], 30, gamma, 0.01, 0.9, 0.999, decay=1.0
    )
    variable = keras.Variable(start, dtype="float64")
    optimizer = keras_adanorm.AdamNorm(gamma=gamma)
    optimizer.build([variable])
    fired = 0
    for t, (w, g, _) in enumerate(walk, start=1):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), w[0], atol=1e-7)
        optimizer.learning_rate = 0.01 / math.sqrt(t)
        optimizer.apply([keras.ops.convert_to_tensor(g[0])], [variable])
        norm_average = float(keras.ops.convert_to_numpy(optimizer.norm_averages[0]))
        fired += norm_average > np.linalg.norm(g)
    assert fired > 5 or name == "Adam"


def test_first_moment_fades_and_steps_stay_in_the_domain():
    walk = simulation.descend(
        lambda t, w: np.where(t == 1, 1.0, -1.0) * np.ones((1, 1)),
        np.zeros((1, 1)),
        4,
        gamma=0.0,
        alpha=0.5,
        beta_1=0.5,
        beta_2=0.0,
        decay=0.0,
    )
    # Step 1 has beta_{1,1} = 1/2: m is 1/2 and m_hat 1. After it beta_{1,t} is 0: m is -1, which
    # is divided by 1 - 2^-t.
    places = [w.item() for w, _, _ in walk]
    second = -0.5 + 0.5 / math.sqrt(2) / 0.75
    assert places == pytest.approx([0, -0.5, second, second + 0.5 / math.sqrt(3) / 0.875], abs=1e-6)
    out = simulation.descend(
        lambda t, w: -np.ones((1, 1)), np.ones((1, 1)), 3, 0.0, 0.5, 0.0, 0.0, 1.0
    )
    assert [w.item() for w, _, _ in out] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("stream", simulation.STREAMS)
def test_best_fixed_point_is_the_best(stream):
    settings = SHORT | {"dimensions": 1, "repeats": 1}
    problem = simulation.STREAMS[stream](settings)
    grid = np.linspace(-1, 1, 2001)[:, None]
    steps = range(1, settings["steps"] + 1)
    losses = np.cumsum([problem.loss(t, grid) for t in steps], axis=0)
    np.testing.assert_allclose(problem.best()[:, 0], losses.min(1), atol=1e-3)
    for t in (1, 2, 3):
        w = np.array([[0.3]])
        slope = (problem.loss(t, w + 1e-6) - problem.loss(t, w - 1e-6)) / 2e-6
        assert problem.gradient(t, w).item() == pytest.approx(slope.item(), abs=1e-6)


def test_bound_is_the_theorems():
    """Its three terms, from numbers of which each can be told by hand."""
    settings = {"alpha": 0.5, "beta_1": 0.5, "beta_2": 0.75, "lambda": 0.5, "dimensions": 2}
    # D_inf = 2 and D^2 = 8; G = 2, G_inf = 3; the sums over the dimensions are 5 and 7.
    first = 8 / (2 * 0.5 * 0.5) * 5
    second = 0.5 * 1.5 * 27 / (0.5 * 0.5 * 0.8**2 * 4) * 7
    third = 2 * 4 * 3 * 0.5 / (2 * 0.5 * 0.5 * 0.25)
    assert simulation._bound(settings, 0.2, 2, 3, 5, 7) == pytest.approx(first + second + third)


def test_regret_and_bound_of_a_stream_that_is_known():
    """Where the first step goes to the best point and stays there, regret is that of one step."""
    settings = {"cycle": SHORT | {"dimensions": 1, "repeats": 1, "steps": 3, "beta_1": 0.0}}
    found = simulation.regret(settings, points=3)["cycle"]["Adam"]
    # Slopes 3, -1, -1 from w = 1, with steps of alpha / sqrt(t) at first: w_2 = 0.9.
    assert found["steps"] == [1, 2, 3]
    v = np.array([0.09, 0.09 * 0.99 + 0.01])
    third = 0.9 + 0.1 / math.sqrt(2) / math.sqrt(v[1] / (1 - 0.99**2))
    regret = np.cumsum([3.0, -0.9, -third]) - [-3, -2, -1]
    np.testing.assert_allclose(found["regret"], [regret / [1, 2, 3]], rtol=1e-6)
    # The bound at T = 1: v_hat is 9 and g_{1:1} is 3.
    bound = simulation._bound(settings["cycle"], 0.0, 3, 3, 3, 3)
    assert found["bound"][0] == pytest.approx(bound)


def test_regret_falls_on_quadratics_and_does_not_on_the_cycle():
    settings = {
        "quadratics": simulation.REGRET["quadratics"] | {"steps": 2000, "repeats": 2},
        "cycle": simulation.REGRET["cycle"] | {"steps": 20_000},
    }
    found = simulation.regret(settings, points=20)
    for name in simulation.NAMES:
        falling, stuck = found["quadratics"][name], found["cycle"][name]
        assert np.mean(falling["regret"], 0)[-1] < 0.1
        assert np.all(np.max(falling["regret"], 0) < falling["bound"])
        # w stays at 1, where a cycle costs 1 in the place of -1.
        assert stuck["regret"][0][-1] == pytest.approx(2 / 3, rel=0.01)
        assert stuck["bound"][-1] < stuck["regret"][0][-1] < stuck["printed_bound"][0]
    shown = figures.regret({"results": found})
    assert [axes.get_title() for axes in shown.axes] == list(figures.STREAMS.values())
    assert all(len(axes.lines) == 5 for axes in shown.axes)


def test_scenarios_of_figure_1():
    settings = {"learning_rate": 0.01, "slope_steps": 30, "steps": 40}
    results = simulation.figure1(settings)
    for scenario, walks in results.items():
        adam, norm = (np.array(walks[name]["update"]) for name in simulation.NAMES)
        # On the slope the gradient is constant: nothing is corrected.
        np.testing.assert_array_equal(adam[:30], norm[:30])
        assert walks["Adam"]["position"][29] < 0 < walks["Adam"]["position"][30]
        np.testing.assert_allclose(adam[:29], 0.01, rtol=1e-5)
        if scenario == "S1":
            assert np.all(norm[30:] > adam[30:])
            assert norm[35] > 1.4 * adam[35]
        elif scenario == "S2":
            np.testing.assert_array_equal(adam, norm)
            assert adam[40] > 0.01
        else:
            assert not np.array_equal(adam, norm)
            assert max(adam[-1], norm[-1]) < 0.004
    figure = figures.figure1({"settings": settings, "results": results})
    assert len(figure.axes) == 6
