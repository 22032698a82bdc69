package pcap

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
)

// isDamage tells errors of what was compressed from those of the reader below.
func isDamage(err error) bool {
	var corrupt flate.CorruptInputError
	var internal flate.InternalError
	return errors.As(err, &corrupt) || errors.As(err, &internal) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader)
}
