package run

import (
	"os"
	"syscall"
	"time"
)

// fileLook is how often the configuration is looked at. A look is one system call; it
// sees a file that was replaced, one that a link leads to by now, and file systems that
// tell no events.
const fileLook = time.Second

// signature changes when a file is written or replaced.
type signature struct {
	inode   uint64
	device  uint64
	size    int64
	changed time.Time
	missing bool
}

// fileWatch tells when a file has other content. One that is being written is left
// until it stays the same between two looks.
type fileWatch struct {
	path string
	// read is of the file as it was last taken, seen as it was last looked at.
	read, seen signature
}

func newFileWatch(path string) *fileWatch {
	s := signatureOf(path)
	return &fileWatch{path: path, read: s, seen: s}
}

// look is true where the file has come to rest in another form than it was taken in.
func (w *fileWatch) look() bool {
	before := w.seen
	w.seen = signatureOf(w.path)
	if w.seen == w.read || w.seen != before {
		return false
	}
	w.read = w.seen
	return true
}

// taken says that the file is read now, whatever was seen before.
func (w *fileWatch) taken() { w.read = signatureOf(w.path); w.seen = w.read }

func signatureOf(path string) signature {
	st, err := os.Stat(path)
	if err != nil {
		return signature{missing: true}
	}
	s := signature{size: st.Size(), changed: st.ModTime()}
	if raw, ok := st.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode = uint64(raw.Dev), raw.Ino
	}
	return s
}
