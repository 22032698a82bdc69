package build

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// TestMain lets the test binary stand in for natkit where a lab starts it again:
// as init, as holder, and as `natkit bench serve`.
func TestMain(m *testing.M) {
	switch {
	case IsInit():
		os.Exit(InitMain())
	case len(os.Args) == 5 && os.Args[1] == "bench":
		os.Exit(serve(os.Args[4]))
	}
	os.Exit(m.Run())
}

func serve(address string) int {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		go func() {
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1024))
			_, _ = conn.Write([]byte("HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n"))
		}()
	}
}
