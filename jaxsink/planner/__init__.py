"""Planning a run without the TPUs or GPUs: the sampler's own program compiled for them, and what the compiler says of it.

    from jaxsink.planner.job import Job
    from jaxsink.planner.planner import make_plan
    from jaxsink.planner.tpu import parse_slice

    plan = make_plan(Job(config, sampler, batch=16, prompt=256, record=received().then(top(8))), parse_slice("v5e:2x4"))

or of a whole evaluation, in the shapes in which `jaxsink evaluate` asks:

    from jaxsink.planner.evaluation import plan_evaluation
    from jaxsink.planner.workload import published_workload

    plan = plan_evaluation(published_workload(setting, config), parse_slice("v5e:2x4"))
    plan.mesh, plan.rows, plan.hours

`parse_gpus("h100:8")` of jaxsink/planner/gpu.py in place of the slice plans for GPUs. Times are estimates by the compiler
and, where it gives none, by us; nothing here was measured on a TPU or GPU.
"""
