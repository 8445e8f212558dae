"""`python -m gpufabric demo`: a gang of several nodes on this machine, start to end."""

import argparse

__all__ = ["demo"]


def demo(args: argparse.Namespace) -> int:
    """Plans, launches, follows, measures, judges and tears down, through the public names only."""
    import gpufabric as gf

    task = gf.bench.all_reduce(num_nodes=args.nodes, workload="tcp")
    with gf.Fabric(gf.Local()) as fabric:
        print("== plan: everything that will be made\n")
        plan = fabric.plan(task)
        print(plan)
        print("\n== launch: all nodes or none; every line of every rank, live\n")
        with fabric.launch(task) as job:
            print(f"{job.ref}\n")
            for line in job.logs(follow=True):
                print(line, flush=True)
            report = job.bench()
            print("\n== report\n")
            print(report)
            print("\n== verdict\n")
            print(report.verdict(job.plan.offer if job.plan else None))
            ref = job.ref
        print("\n== teardown")
        print(f"{ref} is {fabric.attach(ref).status().state}")
    return 0
