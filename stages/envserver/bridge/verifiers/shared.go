package verifiers

import "encoding/json"

// What the server of package serve/verifiers shares with the client here.

// Pack encodes an object of JSON's types, or of []byte, as the wire has it.
func Pack(v map[string]any) []byte { return pack(v) }

// Unpack decodes what a peer says: maps as map[string]any, arrays as []any, texts, []byte, bool, nil, int64, uint64 and float64.
// Its bounds hold whatever the peer sends.
func Unpack(b []byte) (any, error) { return unpack(b) }

// JSON is the text of what was unpacked; figures that are not finite are null in it.
func JSON(v any) json.RawMessage { return toJSON(v) }

// Object reads the text of a JSON object as it would have been unpacked.
func Object(text json.RawMessage) (map[string]any, error) { return fromJSON(text) }
