"""JSON schemas of the formats T1 and T4: the fields that other autotuners require, and their types.

Where Kernel Tuner is installed, its own schemas are used too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema

Schema = dict[str, Any]
TEXT, NUMBER, WHOLE, ANY_LIST, ANY_OBJECT = ({"type": x} for x in ("string", "number", "integer", "array", "object"))


def fields(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def rows(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def words(text: str) -> Schema:
    return {"enum": text.split()}


TIMES = fields(
    **dict.fromkeys(("compilation_time", "framework", "search_algorithm", "validation"), NUMBER), runtimes=ANY_LIST
)
RESULT = fields(
    *("configuration", "times", "invalidity", "correctness"),
    timestamp=TEXT,
    configuration=ANY_OBJECT,
    objectives=ANY_LIST,
    times=TIMES,
    invalidity=words("timeout compile runtime correctness constraints correct"),
    correctness=NUMBER,
    measurements=rows(fields(name=TEXT, value={"type": ["number", "string", "array"]}, unit=TEXT)),
)
VERSION = {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"}
METADATA = fields(
    zenodo=ANY_OBJECT,
    hardware=fields(hardware_description=ANY_LIST, operating_system=TEXT),
    environment=fields(device_query=ANY_OBJECT, requirements=ANY_LIST),
)
LAUNCH_SIZE = fields("X", X=TEXT, Y=TEXT, Z=TEXT)
SPACE = fields(
    "TuningParameters",
    TuningParameters=rows(
        fields("Name", "Type", "Values", Name=TEXT, Type=words("int uint float bool string"), Values=TEXT)
    ),
    Conditions=rows(fields("Parameters", "Expression", Parameters=rows(TEXT), Expression=TEXT)),
)
KERNEL = fields(
    *("Language", "KernelName", "KernelFile", "GlobalSize", "LocalSize"),
    Language=words("OpenCL CUDA Vulkan"),
    KernelName=TEXT,
    KernelFile=TEXT,
    GlobalSize=LAUNCH_SIZE,
    LocalSize=LAUNCH_SIZE,
    Device=fields(PlatformId=WHOLE, DeviceId=WHOLE, Name=TEXT),
)
GENERAL = fields(
    FormatVersion=WHOLE,
    TimeUnit=words("Nanoseconds Microseconds Milliseconds Seconds"),
    OutputFormat=words("JSON XML"),
)
OWN_SCHEMAS: Mapping[str, list[Schema]] = MappingProxyType(
    {
        "t4": [fields("results", "schema_version", schema_version=VERSION, metadata=METADATA, results=rows(RESULT))],
        "t1": [
            fields(
                *("ConfigurationSpace", "KernelSpecification"),
                General=GENERAL,
                ConfigurationSpace=SPACE,
                KernelSpecification=KERNEL,
            )
        ],
    }
)
KERNEL_TUNER_FILES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"t4": ("T4/1.0.0/results-schema.json", "T4/1.0.0/metadata-schema.json"), "t1": ("T1/1.0.0/input-schema.json",)}
)


def kernel_tuner_schemas(kind: str) -> Iterator[Schema]:
    """Yield Kernel Tuner's own schemas of a format, if it is installed."""
    spec = find_spec("kernel_tuner")
    if spec is not None and spec.origin is not None:
        for name in KERNEL_TUNER_FILES[kind]:
            yield json.loads(Path(spec.origin).with_name("schema").joinpath(name).read_text(encoding="utf-8"))


def check_document(kind: str, document: Mapping[str, Any]) -> None:
    """Raise jsonschema.ValidationError unless the document is valid."""
    for schema in [*OWN_SCHEMAS[kind], *kernel_tuner_schemas(kind)]:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema).validate(document)
