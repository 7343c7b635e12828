"""An independent client of prl's topics: confluent-kafka and fastavro, and of prl only the .avsc files.

    interop.py read  BROKERS SCHEMAS REGISTRY TOPIC...   prints every committed record as a line of JSON
    interop.py write BROKERS SCHEMAS REGISTRY TOPIC      writes the two traces of a group

SCHEMAS is the folder of the .avsc files. REGISTRY is the URL of a Schema Registry: records are in Confluent's framing.
Where it is empty they are in Avro single-object encoding.
"""

import io
import json
import pathlib
import struct
import sys
import urllib.request

import confluent_kafka
import fastavro
from fastavro import schema as avro

DEADLINE = 30  # seconds, for any one answer
GROUP = 7


class Codec:
    """All records, in one of the framings."""

    def __init__(self, folder, registry):
        self.registry = registry
        self.by_fingerprint, self.by_name, self.by_id = {}, {}, {}
        for path in pathlib.Path(folder).glob("*.avsc"):
            text = json.loads(path.read_text())
            canonical = avro.to_parsing_canonical_form(text)
            fingerprint = bytes.fromhex(avro.fingerprint(canonical, "CRC-64-AVRO"))
            self.by_fingerprint[fingerprint] = self.by_name[text["name"]] = fastavro.parse_schema(text)

    def decode(self, value):
        if self.registry:
            marker, number, body = value[:1], value[1:5], value[5:]
            schema = self.of_id(struct.unpack(">I", number)[0])
        else:
            marker, fingerprint, body = value[:2], value[2:10], value[10:]
            schema = self.by_fingerprint[fingerprint]
        if marker != (b"\0" if self.registry else b"\xc3\x01"):
            raise ValueError(f"another framing: {value[:10].hex()}")
        rest = io.BytesIO(body)
        record = fastavro.schemaless_reader(rest, schema)
        if rest.read():
            raise ValueError("bytes are left")
        return schema["name"].removeprefix("prl."), record

    def of_id(self, number):
        if number not in self.by_id:
            self.by_id[number] = fastavro.parse_schema(json.loads(self.ask(f"/schemas/ids/{number}")["schema"]))
        return self.by_id[number]

    def encode(self, name, record):
        schema = self.by_name[name]
        out = io.BytesIO()
        if self.registry:
            out.write(struct.pack(">bI", 0, self.ask(f"/subjects/prl.{name}/versions/latest")["id"]))
        else:
            fingerprint = next(f for f, s in self.by_fingerprint.items() if s is schema)
            out.write(b"\xc3\x01" + fingerprint)
        fastavro.schemaless_writer(out, schema, record, strict=True)
        return out.getvalue()

    def ask(self, path):
        with urllib.request.urlopen(self.registry + path, timeout=DEADLINE) as answer:
            return json.load(answer)


def plain(value):
    """A value as JSON that two languages write alike: numbers with a fraction by their bits, bytes in hexadecimal."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return "double " + struct.pack(">d", value).hex()
    if isinstance(value, bytes):
        return "bytes " + value.hex()
    return value


def read(brokers, codec, topics):
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": brokers, "group.id": "interop", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "error",
    })
    found = consumer.list_topics(timeout=DEADLINE).topics
    parts = [confluent_kafka.TopicPartition(t, p, 0) for t in topics for p in found[t].partitions]
    consumer.assign(parts)
    ends = 0
    while ends < len(parts):
        message = consumer.poll(DEADLINE)
        if message is None:
            raise TimeoutError("nothing comes")
        if message.error() and message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
            ends += 1
            continue
        if message.error():
            raise confluent_kafka.KafkaException(message.error())
        name, record = codec.decode(message.value())
        line = {"topic": message.topic(), "partition": message.partition(), "offset": message.offset(),
                "key": message.key().decode(), "name": name, "value": plain(record)}
        print(json.dumps(line))
    consumer.close()


def zero(schema):
    """The zero value of a schema: what a record's author need not think of."""
    if isinstance(schema, list):
        return zero(schema[0])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {f["name"]: zero(f["type"]) for f in schema["fields"]}
    return {"null": None, "boolean": False, "int": 0, "long": 0, "double": 0.0, "string": "", "bytes": b"", "array": [], "map": {}}[kind]


def rollout(codec, index):
    """A prompt of two tokens and an answer of three, sampled by policy version 4 at temperature 0.5."""
    trace_schema = codec.by_name["Trace"]
    node_schema = next(f["type"]["items"] for f in trace_schema["fields"] if f["name"] == "nodes")
    prompt, answer, trace = zero(node_schema), zero(node_schema), zero(trace_schema)
    prompt.update(parent=-1, role="user", content="2 + 2 = ?", token_ids=struct.pack("<2i", 100, 101), mask=bytes(2),
                  logprobs=struct.pack("<2f", 0, 0))
    answer.update(parent=0, role="assistant", content="four ☃", token_ids=struct.pack("<3i", 10 * index, 11, 12),
                  mask=b"\x01\x01\x01", logprobs=struct.pack("<3f", -0.5, -1.25, -2), temperature=0.5,
                  versions=[{"offset": 0, "version": 4}])
    trace.update(env="interop", group_id=GROUP, group_size=2, rollout_index=index, task_index=17, nodes=[prompt, answer],
                 rewards={"right": float(index), "not applicable": None}, reward=float(index), policy_start=4, policy_end=4)
    return trace


def write(brokers, codec, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
    partitions = len(producer.list_topics(topic, timeout=DEADLINE).topics[topic].partitions)
    failed = []
    for index in range(2):
        producer.produce(topic, key=str(GROUP), value=codec.encode("Trace", rollout(codec, index)),
                         partition=GROUP % partitions, on_delivery=lambda err, _: err and failed.append(err))
    if producer.flush(DEADLINE) or failed:
        raise TimeoutError(f"not delivered: {failed}")


if __name__ == "__main__":
    command, brokers, folder, registry, *topics = sys.argv[1:]
    codec = Codec(folder, registry)
    if command == "read":
        read(brokers, codec, topics)
    else:
        write(brokers, codec, *topics)
