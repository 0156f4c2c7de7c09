from deploy.machine import machine_facts

SAPPHIRE_RAPIDS = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx2 avx512f avx512_vnni amx_bf16 amx_int8
"""
OLD_LAPTOP = "processor\t: 0\nmodel name\t: Some: Processor\nflags\t\t: fpu sse4_2 avx2\n"


def test_processor_and_its_instruction_sets_are_read() -> None:
    facts = machine_facts(cpuinfo=SAPPHIRE_RAPIDS, versions={})
    assert facts.cpu == "Intel(R) Xeon(R) Platinum 8481C"
    assert facts.instruction_sets == ("avx2", "avx512f", "avx512_vnni", "amx_bf16", "amx_int8")
    assert facts.has_int8_dot_product
    assert not facts.saturates_in_16_bits


def test_a_processor_without_integer_dot_product_is_recognised() -> None:
    facts = machine_facts(cpuinfo=OLD_LAPTOP, versions={})
    assert facts.cpu == "Some: Processor"
    assert not facts.has_int8_dot_product
    assert facts.saturates_in_16_bits


def test_processors_of_other_kinds_do_not_saturate() -> None:
    arm = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n"
    assert not machine_facts(cpuinfo=arm, versions={}).saturates_in_16_bits


def test_a_system_that_tells_nothing_still_has_a_name() -> None:
    facts = machine_facts(cpuinfo="")
    assert facts.cpu
    assert facts.instruction_sets == ()
    assert "numpy" in facts.versions
