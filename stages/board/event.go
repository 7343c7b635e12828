package board

import (
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Fields of TensorFlow's messages (tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto and tensor.proto).
const (
	eventWallTime    = 1
	eventStep        = 2
	eventFileVersion = 3
	eventSummary     = 5
	// eventPlace is ours: what a reader does not know it passes over.
	eventPlace  = 10000
	placeTopic  = 1
	placeOffset = 2

	summaryValue  = 1
	valueTag      = 1
	valueSimple   = 2
	valueTensor   = 8
	valueMetadata = 9

	metadataPlugin    = 1
	pluginName        = 1
	pluginContent     = 2
	metadataDataClass = 4
	dataClassTensor   = 2

	tensorDtype  = 1
	tensorShape  = 2
	tensorString = 8
	shapeDim     = 2
	dimSize      = 1
	dtypeString  = 7
)

// version 2: TensorBoard does not throw points away that come behind one of a later step.
const fileVersion = "brain.Event:2"

// An event is one of TensorFlow's, with the place of the record it was made of.
type event struct {
	wall        time.Time
	step        int64
	fileVersion string
	values      []value
	topic       string // empty where it was made of none
	offset      int64
}

// A value is a scalar, or a text or a message of a plugin's.
type value struct {
	tag    string
	scalar float64
	plugin string // empty for a scalar
	// text is the string tensor of a plugin that shows one, content what it keeps in the metadata.
	text, content []byte
}

func (e event) bytes() []byte {
	b := protowire.AppendTag(nil, eventWallTime, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, math.Float64bits(float64(e.wall.UnixMicro())/1e6))
	if e.step != 0 {
		b = protowire.AppendTag(b, eventStep, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(e.step))
	}
	if e.fileVersion != "" {
		b = appendString(b, eventFileVersion, e.fileVersion)
	}
	if len(e.values) > 0 {
		var summary []byte
		for _, v := range e.values {
			summary = appendBytes(summary, summaryValue, v.bytes())
		}
		b = appendBytes(b, eventSummary, summary)
	}
	if e.topic != "" {
		place := appendString(nil, placeTopic, e.topic)
		place = protowire.AppendTag(place, placeOffset, protowire.VarintType)
		b = appendBytes(b, eventPlace, protowire.AppendVarint(place, uint64(e.offset)))
	}
	return b
}

func (v value) bytes() []byte {
	b := appendString(nil, valueTag, strings.ToValidUTF8(v.tag, "")) // names of evals' metrics are the environments'
	if v.plugin == "" {
		b = protowire.AppendTag(b, valueSimple, protowire.Fixed32Type)
		return protowire.AppendFixed32(b, math.Float32bits(float32(v.scalar)))
	}
	plugin := appendString(nil, pluginName, v.plugin)
	if len(v.content) > 0 {
		plugin = appendBytes(plugin, pluginContent, v.content)
	}
	metadata := appendBytes(nil, metadataPlugin, plugin)
	metadata = protowire.AppendTag(metadata, metadataDataClass, protowire.VarintType)
	b = appendBytes(b, valueMetadata, protowire.AppendVarint(metadata, dataClassTensor))
	tensor := protowire.AppendVarint(protowire.AppendTag(nil, tensorDtype, protowire.VarintType), dtypeString)
	size := protowire.AppendVarint(protowire.AppendTag(nil, dimSize, protowire.VarintType), 1)
	tensor = appendBytes(tensor, tensorShape, appendBytes(nil, shapeDim, size))
	return appendBytes(b, valueTensor, appendBytes(tensor, tensorString, v.text))
}

func appendString(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// placeOf reads from an event which record it was made of; ok is false where it was made of none.
func placeOf(event []byte) (topic string, offset int64, ok bool, err error) {
	place, ok, err := fieldOf(event, eventPlace)
	if err != nil || !ok {
		return "", 0, false, err
	}
	name, ok, err := fieldOf(place, placeTopic)
	if err != nil || !ok {
		return "", 0, false, err
	}
	for b := place; len(b) > 0; {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", 0, false, protowire.ParseError(n)
		}
		if b = b[n:]; number == placeOffset && kind == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			return string(name), int64(v), n >= 0, protowire.ParseError(min(n, 0))
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return "", 0, false, protowire.ParseError(n)
		}
		b = b[n:]
	}
	return string(name), 0, true, nil // proto3 leaves a zero out
}

// fieldOf is the last field of a number and of the type bytes.
func fieldOf(b []byte, field protowire.Number) (found []byte, ok bool, err error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, false, fmt.Errorf("is no event: %w", protowire.ParseError(n))
		}
		value := protowire.ConsumeFieldValue(number, kind, b[n:])
		if value < 0 {
			return nil, false, fmt.Errorf("is no event: %w", protowire.ParseError(value))
		}
		if number == field && kind == protowire.BytesType {
			found, _ = protowire.ConsumeBytes(b[n:])
			ok = true
		}
		b = b[n+value:]
	}
	return found, ok, nil
}
