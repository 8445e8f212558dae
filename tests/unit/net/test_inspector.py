import json

from gpufabric import net


def record(rank: int, busbw: float, time_us: float, size: int = 1 << 30) -> str:
    return json.dumps(
        {
            "header": {"id": "0x51c0", "rank": rank, "n_ranks": 16, "nnodes": 2},
            "metadata": {"hostname": f"ib-{rank // 8}", "pid": 1},
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": 1,
                "coll_msg_size_bytes": size,
                "coll_exec_time_us": time_us,
                "coll_busbw_gbs": busbw,
            },
        }
    )


def test_records_add_up_to_one_row_for_each_collective_and_size() -> None:
    lines = [record(0, 400.0, 5000), record(9, 300.0, 6700), record(3, 90.0, 11, size=4096)]
    report = net.read("\n".join(lines) + "\n")
    assert report.kind == "inspector"
    assert (report.header.n_ranks, report.header.n_nodes) == (16, 2)
    large, small = report.inspector
    assert (large.count, large.busbw_mean, large.busbw_min, large.busbw_max) == (
        2,
        350.0,
        300.0,
        400.0,
    )
    assert (large.slowest_rank, large.slowest_host) == (9, "ib-1")
    assert small.size_bytes == 4096


def test_records_with_strange_numbers_are_left_out() -> None:
    text = (
        '{"coll_perf": {"coll": "AllReduce", "coll_msg_size_bytes": 8, "coll_exec_time_us": "x"}}\n'
    )
    report = net.read(text + '{"coll_perf": {"coll": 4}}\n')
    assert report.inspector == ()
