package history

import (
	"slices"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/sink"
)

// DeadLetters counts the records that stages refused, as files that begin before an offset tell, and says of the newest which
// stage and why.
func (f *Files) DeadLetters(before int64) (count int64, newest string, err error) {
	files, err := sink.ListFiles(f.Dir, pipeline.TopicDLQ)
	if err != nil {
		return 0, "", err
	}
	files = slices.DeleteFunc(files, func(f sink.File) bool { return f.Start >= before })
	for i, file := range files {
		if err := columns(file.Path, func(t *table) error {
			count += t.file.NumRows()
			if i < len(files)-1 {
				return nil
			}
			stage, reason := "", ""
			for name, to := range map[string]*string{"stage": &stage, "error": &reason} {
				if err := t.each(name, func(_ int64, v parquet.Value) error {
					*to = string(v.ByteArray())
					return nil
				}); err != nil {
					return err
				}
			}
			newest = stage + ": " + reason
			return nil
		}); err != nil {
			return 0, "", err
		}
	}
	return count, newest, nil
}
