"""The page of the HTTP API, from its OpenAPI document."""

import json
from collections import Counter

PAGE = "docs/http-api.md"
HEAD = """# The calls of the HTTP API

All calls with all fields, made from the OpenAPI document of `keyfall serve`, which each daemon serves
at `/v1/openapi.json`. [The daemon](daemon.md#how-do-i-schedule-over-http) explains them.
Every answer from status 400 on is a [`Problem`](#problem) with a [code](daemon.md#which-errors-are-there).
These are not listed again for each call:
"""
ORDER = ["jobs", "batch", "consume", "series", "bulk", "dead letters", "kinds", "instances"]


def page(source):
    document = json.loads(source)
    tags = {tag: [] for tag in ORDER}
    answers = Counter()
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            tags.setdefault(call["tags"][0], []).append((method, path, call))
            answers.update((status, it.get("description", "")) for status, it in call["responses"].items())
    common = {it: count for it, count in answers.items() if it[0] >= "400" and count > 15}
    parts = [HEAD, "| status | |\n|---|---|"]
    parts += [f"| {status} | {cell(what)} |" for status, what in sorted(common)]
    parts.append("")
    for tag, calls in tags.items():
        parts.append(f"## {tag[0].upper()}{tag[1:]}\n")
        parts += [section(*call, common) for call in calls]
    parts.append("## Types\n")
    schemas = document["components"]["schemas"].items()
    parts += [f"### {name}\n\n{described(schema)}" for name, schema in schemas]
    return "\n".join(parts)


def section(method, path, call, common):
    parts = [f"### {method.upper()} {path} {{ #{call['operationId']} }}\n"]
    parts += [text(call[part]) + "\n" for part in ("summary", "description") if part in call]
    if call.get("parameters"):
        parts.append("| parameter | | |\n|---|---|---|")
        parts += [parameter(it) for it in call["parameters"]]
        parts.append("")
    if "requestBody" in call:
        parts.append(f"Body: {bodies(call['requestBody'])}\n")
    parts.append("| status | | body |\n|---|---|---|")
    for status, answer in sorted(call["responses"].items()):
        if (status, answer.get("description", "")) not in common:
            parts.append(f"| {status} | {cell(answer.get('description'))} | {bodies(answer)} |")
    return "\n".join(parts) + "\n"


def parameter(it):
    needed = ", must be given" if it.get("required") else ""
    schema = it.get("schema", {})
    return f"| `{it['name']}` | {kind(schema)}{needed} | {cell(it.get('description'))} |"


def bodies(of):
    shown = [f"{kind(it.get('schema', {}))}{form(name)}" for name, it in of.get("content", {}).items()]
    return " or ".join(shown)


def form(media):
    return "" if media in ("application/json", "application/problem+json") else f" as `{media}`"


def described(schema):
    """The description of a type, and its fields."""
    parts = [text(schema["description"]) + "\n"] if "description" in schema else []
    fields, required = schema.get("properties", {}), schema.get("required", [])
    for part in schema.get("allOf", []):
        if "$ref" in part:
            parts.append(f"Has the fields of {kind(part)}.\n")
        fields, required = fields | part.get("properties", {}), required + part.get("required", [])
    if not fields:
        return "\n".join([*parts, kind(schema), ""])
    parts.append("| field | | |\n|---|---|---|")
    for name, of in fields.items():
        always = ", always there" if name in required else ""
        parts.append(f"| `{name}` | {kind(of)}{always} | {cell(description(of))} |")
    return "\n".join(parts) + "\n"


def description(schema):
    parts = [schema, *schema.get("oneOf", []), *schema.get("allOf", [])]
    return next((part["description"] for part in parts if "description" in part), None)


def kind(schema):
    """A type in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(kind(it) for it in choices if it != {"type": "null"}))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    names = schema.get("type", "any JSON")
    names = [names] if isinstance(names, str) else [name for name in names if name != "null"]
    if names == ["array"]:
        return f"list of {kind(schema.get('items', {}))}"
    if names == ["object"] and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind(schema['additionalProperties'])} by name"
    return " or ".join(names)


def text(of):
    return of.replace("<", "&lt;")


def cell(of):
    return text(of or "").replace("\n", " ").replace("|", "\\|")
