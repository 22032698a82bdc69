package profile

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteFolded writes one line per stack: its functions, outermost first, joined by
// semicolons, a blank and the number of samples. Many tools read this form.
func (s *Stacks) WriteFolded(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, stack := range s.Stacks {
		fmt.Fprintf(out, "%s %d\n", folded(stack.Frames), stack.Count)
	}
	return out.Flush()
}

func folded(frames []Frame) string {
	var b strings.Builder
	for i, f := range frames {
		if i > 0 {
			b.WriteByte(';')
		}
		b.WriteString(f.String())
	}
	return b.String()
}

// String is the function, with its module where it has one. Neither has a blank
// or a semicolon in it.
func (f Frame) String() string {
	if f.Module == "" {
		return f.Function
	}
	return f.Function + "[" + f.Module + "]"
}
