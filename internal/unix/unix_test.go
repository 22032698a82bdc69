//go:build linux

package unix

import (
	"go/constant"
	"go/importer"
	"go/token"
	"go/types"
	"syscall"
	"testing"
)

// TestConstants compares every constant of this package with the one of its name in golang.org/x/sys/unix.
func TestConstants(t *testing.T) {
	source := importer.ForCompiler(token.NewFileSet(), "source", nil)
	here, err := source.Import("github.com/natkit/natkit/internal/unix")
	if err != nil {
		t.Fatal(err)
	}
	there, err := source.Import("golang.org/x/sys/unix")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, name := range here.Scope().Names() {
		c, is := here.Scope().Lookup(name).(*types.Const)
		if !is {
			continue
		}
		compared++
		theirs, there := there.Scope().Lookup(name).(*types.Const)
		if !there || !constant.Compare(c.Val(), token.EQL, theirs.Val()) {
			t.Errorf("%s is %v, and in golang.org/x/sys/unix %v", name, c, theirs)
		}
	}
	if compared < 100 {
		t.Errorf("%d constants were compared", compared)
	}
}

// TestTexts: errors have the same text on every system.
func TestTexts(t *testing.T) {
	for number, text := range texts {
		if want := syscall.Errno(number).Error(); text != want {
			t.Errorf("%d: %q, want %q", number, text, want)
		}
	}
}
