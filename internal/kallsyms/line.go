package kallsyms

import "bytes"

// line is a symbol as /proc/kallsyms shows it; names point into the text.
type line struct {
	addr         uint64
	kind         byte
	name, module []byte
}

// split reads a line; false where it is none.
func split(text []byte) (line, bool) {
	addr, rest, ok := hex(text)
	if !ok || len(rest) < 4 || rest[0] != ' ' || rest[2] != ' ' {
		return line{}, false
	}
	l := line{addr: addr, kind: rest[1]}
	name, module, inModule := bytes.Cut(rest[3:], []byte("\t"))
	l.name = name
	if inModule {
		if l.module, ok = unbracket(module); !ok {
			return line{}, false
		}
	}
	return l, isName(l.name) && (!inModule || isName(l.module))
}

// hex reads the number that text begins with, of at most 16 digits.
func hex(text []byte) (n uint64, rest []byte, ok bool) {
	for i, c := range text {
		digit, ok := hexDigit(c)
		if !ok {
			return n, text[i:], i > 0
		}
		if i == 16 {
			return 0, nil, false
		}
		n = n<<4 | uint64(digit)
	}
	return 0, nil, false
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// unbracket takes the name out of "[name]"; what follows the bracket (a build ID,
// on some kernels) is left out.
func unbracket(text []byte) ([]byte, bool) {
	if len(text) < 3 || text[0] != '[' {
		return nil, false
	}
	name, _, ok := bytes.Cut(text[1:], []byte("]"))
	return name, ok
}

// isName keeps out what would do something to a terminal.
func isName(name []byte) bool {
	if len(name) == 0 || len(name) > maxName {
		return false
	}
	for _, c := range name {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// isText tells functions by their type, as nm prints it.
func isText(kind byte) bool { return kind == 't' || kind == 'T' || kind == 'w' || kind == 'W' }

// isEnd tells symbols behind which there is no code: data, and the linker's marks
// at the ends of the kernel's text.
func isEnd(l line) bool {
	switch l.kind {
	case 'd', 'D', 'b', 'B', 'r', 'R':
		return l.addr != 0
	}
	return len(l.module) == 0 && (string(l.name) == "_etext" || string(l.name) == "_einittext")
}

// paddings are the symbols of the bytes before a function (since 6.2, amd64),
// which are never run and would double the table.
var paddings = [][]byte{[]byte("__pfx_"), []byte("__cfi_")}

// isPadding also tells the marks where the kernel's text begins: they name no
// function, and share their address with the first.
func isPadding(name []byte) bool {
	for _, prefix := range paddings {
		if bytes.HasPrefix(name, prefix) {
			return true
		}
	}
	switch string(name) {
	case "_text", "_stext", "_head", "_sinittext":
		return true
	}
	return false
}
