from __future__ import annotations

import json

from nccl_tests_text import run

from gpufabric import net

# Every name of the vocabulary that a reader of the JSON may rely on being there.
HEADER = {
    "kind", "health", "findings", "nccl_version", "cuda_driver", "cuda_build", "gpu", "n_ranks",
    "n_nodes", "ranks_per_node", "iters", "warmup_iters", "validation", "complete", "tables",
}  # fmt: skip
LOG = {
    "network", "net_plugin", "provider", "hcas", "link_layer", "gdr", "inter_node_transport",
    "intra_node_transport", "oob_interface", "socket_interfaces", "env", "channels",
    "n_hosts_seen", "comm_id", "errors", "return_codes",
}  # fmt: skip
TORCH = {"pg", "rank", "last_enqueued", "last_completed"}
TOPOLOGY = {
    "n_gpus", "n_nics", "n_cpus", "gpu_nic_path", "nearest_nics", "gpus_without_near_nic",
    "cpu_affinity", "nvlinks_per_gpu", "nets",
}  # fmt: skip
DEVICES = {"down", "counters", "netdev_down", "n_hcas"}
RAS = {"n_processes", "communicators", "mismatch"}
TABLE = {
    "collective", "dtype", "redop", "root", "n_ranks", "rows", "first_size_bytes",
    "largest_size_bytes", "at_largest", "avg_bus_bandwidth", "out_of_bounds_count",
    "out_of_bounds_word", "mean_of_printed_rows", "printed_rows_are_complete",
}  # fmt: skip


def test_every_key_is_there_and_null_where_the_text_does_not_tell() -> None:
    document = net.read("nothing of ours\n").to_dict()
    assert set(document) >= HEADER | LOG | TORCH | TOPOLOGY | DEVICES | RAS
    assert document["kind"] == "unknown"
    told = {k for k, v in document.items() if v not in (None, [], {}, 0, "unknown")}
    assert told <= {"health", "findings"}


def test_a_table_is_told_with_its_largest_row() -> None:
    document = net.read("\n".join(run()) + "\n").to_dict()
    tables = document["tables"]
    assert isinstance(tables, list)
    (table,) = tables
    assert set(table) == TABLE
    assert table["rows"] == 6
    assert set(table["at_largest"]["in_place"]) == {"time_us", "algbw", "busbw", "wrong"}
    assert table["largest_size_bytes"] == 1 << 35


def test_the_document_is_plain_json() -> None:
    text = "\n".join(run()) + "\nq:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'out of memory'\n"
    document = net.read(text).to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_what_two_parts_tell_differently_is_kept_under_the_parts_name() -> None:
    text = (
        "q:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
        "CA 'mlx5_7'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n"
        "\t\tPhysical state: Polling\n\t\tRate: 10\n\t\tLink layer: InfiniBand\n"
    )
    document = net.read(text).to_dict()
    assert document["hcas"] == ["mlx5_0"]
    devices = document["devices"]
    assert isinstance(devices, dict)
    assert "mlx5_7" in devices["hcas"]


def test_evidence_has_nothing_that_drives_a_terminal() -> None:
    text = "q:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'out \x1b]0;owned\x07\x1b[2J\x08of memory'\n"
    (error,) = net.read(text).errors
    assert error.evidence.text.isprintable()


def test_errors_tell_line_and_text() -> None:
    document = net.read("\n\nq:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'out of memory'\n").to_dict()
    errors = document["errors"]
    assert isinstance(errors, list)
    assert (errors[0]["lineno"], errors[0]["kind"]) == (3, "cuda_failure")
    assert "out of memory" in errors[0]["message"]


def test_a_report_prints_and_draws_itself_without_markup_from_the_log() -> None:
    text = "\n".join(run()) + "\nq:1:2 [0] a.cc:1 NCCL WARN Cuda failure '<script>'\n"
    report = net.read(text)
    assert "all_reduce float sum" in str(report)
    html = report._repr_html_()
    assert "n_ranks" in html
    assert "<script>" not in html
