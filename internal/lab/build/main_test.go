package build

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/natkit/natkit/internal/testutil"
)

// TestMain lets the test binary stand in for natkit where a lab starts it again:
// as init, as holder, and as `natkit bench serve`; or where a test starts it as a natkit
// that fills.
func TestMain(m *testing.M) {
	switch {
	case IsInit():
		os.Exit(InitMain())
	case len(os.Args) == 5 && os.Args[1] == "bench":
		os.Exit(serve(os.Args[4]))
	case os.Getenv(childEnv) != "":
		os.Exit(childMain(os.Getenv(childEnv)))
	case os.Getenv(elsewhereEnv) != "":
		os.Exit(elsewhere(os.Getenv(elsewhereEnv), os.Getenv("DIR")))
	}
	os.Exit(m.Run())
}

// elsewhereEnv makes the test binary process 1 of a PID namespace of its own.
const elsewhereEnv = "NATKIT_TEST_ELSEWHERE"

// elsewhere prints what it sees of the labs of other PID namespaces, or keeps one up.
func elsewhere(mode, dir string) int {
	err := testutil.OwnProc()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if mode == "hold" {
		_, err := Hold{Name: "table-full", Server: Builtin, Dir: dir}.Start(context.Background())
		fmt.Println("up", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	}
	up, err := States(dir)
	fmt.Println(len(up), err)
	for _, s := range up {
		_, entered := Attach(dir, s)
		fmt.Printf("%s: %v; %v\n", s.Name, entered, Down(dir, s))
	}
	return 0
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
