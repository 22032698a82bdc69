package table

import (
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// Bounds of a row group, which is in memory until it is complete: what is smaller of both.
const (
	groupRows  = 128 << 10
	groupBytes = 32 << 20
	pageBytes  = 256 << 10
)

// Writer writes the rows of one file.
type Writer[T Row] struct {
	to   *parquet.GenericWriter[T]
	done int64 // bytes of the row groups before
	rows int64
}

// NewWriter begins a file that a natkit of this version writes.
func NewWriter[T Row](w io.Writer, version string) *Writer[T] {
	return &Writer[T]{to: parquet.NewGenericWriter[T](w,
		parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.MaxRowsPerRowGroup(groupRows), parquet.PageBufferSize(pageBytes),
		parquet.CreatedBy("natkit", version, ""),
		parquet.KeyValueMetadata(MetaSchema, Schema), parquet.KeyValueMetadata(MetaTable, Name[T]()), parquet.KeyValueMetadata(MetaVersion, version),
	)}
}

// Write appends rows, which may be changed afterwards.
func (w *Writer[T]) Write(rows []T) error {
	n, err := w.to.Write(rows)
	w.rows += int64(n)
	if err != nil {
		return fmt.Errorf("write table %s: %w", Name[T](), err)
	}
	if size := w.to.Size(); size-w.done > groupBytes {
		err = w.to.Flush()
		w.done = w.to.Size()
	}
	if err != nil {
		return fmt.Errorf("write table %s: %w", Name[T](), err)
	}
	return nil
}

// Rows is how many were written.
func (w *Writer[T]) Rows() int64 { return w.rows }

// Close ends the file; without it, it is none.
func (w *Writer[T]) Close() error {
	if err := w.to.Close(); err != nil {
		return fmt.Errorf("write table %s: %w", Name[T](), err)
	}
	return nil
}
