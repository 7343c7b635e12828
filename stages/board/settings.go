package board

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of the plugin hparams (tensorboard/plugins/hparams/plugin_data.proto, api.proto) and of google.protobuf.Value.
const (
	hparamsStart = 3 // HParamsPluginData.session_start_info
	startHParams = 1
	startGroup   = 4
	startTime    = 5
	entryKey     = 1
	entryValue   = 2
	structNumber = 2
	structString = 3
	structBool   = 4
)

const hparamsTag = "_hparams_/session_start_info"

// preamble is what an event file begins with: its version, and the settings as text and as hyperparameters.
func preamble(name string, settings []byte, now time.Time) []event {
	events := []event{{wall: now, fileVersion: fileVersion}}
	if settings == nil {
		return events
	}
	text := "```toml\n" + strings.ReplaceAll(string(settings), "```", "` ` `") + "\n```"
	values := []value{{tag: "settings/text_summary", plugin: "text", text: []byte(text)}}
	var tree map[string]any
	if toml.Unmarshal(settings, &tree) == nil {
		flat := map[string]any{}
		flatten("", tree, flat)
		values = append(values, value{tag: hparamsTag, plugin: "hparams", content: hparams(name, flat, now)})
	}
	for _, v := range values {
		events = append(events, event{wall: now, values: []value{v}})
	}
	return events
}

// tuned are the sections that people compare runs by.
var tuned = []string{"run", "model", "trainer", "scorer", "packer", "emitter"}

// flatten puts the numbers, texts and truth values of the tuned sections into flat, under their keys with points.
func flatten(prefix string, tree, flat map[string]any) {
	for k, v := range tree {
		if prefix == "" && !slices.Contains(tuned, k) {
			continue
		}
		switch v := v.(type) {
		case map[string]any:
			flatten(prefix+k+".", v, flat)
		case string, bool, int64, float64:
			flat[prefix+k] = v
		case []any:
			flat[prefix+k] = fmt.Sprint(v)
		}
	}
}

func hparams(name string, flat map[string]any, now time.Time) []byte {
	var start []byte
	for _, k := range slices.Sorted(maps.Keys(flat)) {
		entry := appendString(nil, entryKey, k)
		entry = appendBytes(entry, entryValue, structValue(flat[k]))
		start = appendBytes(start, startHParams, entry)
	}
	start = appendString(start, startGroup, name)
	start = protowire.AppendTag(start, startTime, protowire.Fixed64Type)
	start = protowire.AppendFixed64(start, math.Float64bits(float64(now.UnixMicro())/1e6))
	return appendBytes(nil, hparamsStart, start)
}

func structValue(v any) []byte {
	number := func(f float64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, structNumber, protowire.Fixed64Type), math.Float64bits(f))
	}
	switch v := v.(type) {
	case int64:
		return number(float64(v))
	case float64:
		return number(v)
	case bool:
		return protowire.AppendVarint(protowire.AppendTag(nil, structBool, protowire.VarintType), protowire.EncodeBool(v))
	}
	return appendString(nil, structString, fmt.Sprint(v))
}
