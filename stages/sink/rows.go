package sink

import (
	"io"
	"reflect"

	"github.com/parquet-go/parquet-go"
)

// A rowWriter writes rows of one table. parquet-go copies a tensor whole where it knows the type of the rows when it is
// compiled, and else looks at each number by itself; so rows.gen.go has the types that columnsOf makes.
type rowWriter interface {
	// next is the row to fill, with whatever an earlier one has left there.
	next() reflect.Value
	// add writes what next gave, of a record of some bytes.
	add(bytes int) error
	close() error
}

const (
	// maxHeldRows and maxHeldBytes bound the rows that are written at once.
	maxHeldRows  = 64
	maxHeldBytes = 1 << 18
)

type rowsOf[T any] struct {
	out   *parquet.GenericWriter[T]
	rows  []T // of which held are filled; their memory is used again
	held  int
	bytes int
}

func openRows[T any](w io.Writer, options ...parquet.WriterOption) rowWriter {
	return &rowsOf[T]{out: parquet.NewGenericWriter[T](w, options...)}
}

func (r *rowsOf[T]) next() reflect.Value {
	if r.held == len(r.rows) {
		r.rows = append(r.rows, *new(T))
	}
	return reflect.ValueOf(&r.rows[r.held]).Elem()
}

func (r *rowsOf[T]) add(bytes int) error {
	r.held, r.bytes = r.held+1, r.bytes+bytes
	if r.held < maxHeldRows && r.bytes < maxHeldBytes {
		return nil
	}
	return r.write()
}

func (r *rowsOf[T]) write() error {
	_, err := r.out.Write(r.rows[:r.held])
	r.held, r.bytes = 0, 0
	return err
}

func (r *rowsOf[T]) close() error {
	if err := r.write(); err != nil {
		return err
	}
	return r.out.Close()
}
