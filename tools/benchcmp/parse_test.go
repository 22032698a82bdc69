package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The texts are cut from real runs of ab 2.3, wrk 4.1.0 and strace 6.1.
const (
	abText = `Document Path:          /
Document Length:        6 bytes

Concurrency Level:      100
Time taken for tests:   0.035 seconds
Complete requests:      2000
Failed requests:        3
   (Connect: 0, Receive: 0, Length: 3, Exceptions: 0)
Total transferred:      470000 bytes
Requests per second:    57791.78 [#/sec] (mean)
Time per request:       1.730 [ms] (mean)
`
	wrkText = `Running 1s test @ http://127.0.0.1:18080/
  2 threads and 100 connections
    Req/Sec    27.86k     5.91k   40.88k    70.00%
  55528 requests in 1.00s, 12.44MB read
Requests/sec:  55403.56
Transfer/sec:     12.42MB
`
	wrkErrorText = `  55528 requests in 1.00s, 12.44MB read
  Socket errors: connect 1, read 20, write 300, timeout 4000
  Non-2xx or 3xx responses: 50000
Requests/sec:  55403.56
`
	straceText = `% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 24.60    0.006755           6      1003       502 connect
  0.00    0.000000           0         1           execve
------ ----------- ----------- --------- --------- ----------------
100.00    0.027462           4      6859       504 total
`
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parse func([]byte) (outcome, error)
		text  string
		want  outcome
	}{
		{"ab", parseAB, abText, outcome{Completed: 1997, Failed: 3, PerSecond: 57791.78}},
		{"wrk", parseWrk, wrkText, outcome{Completed: 55528, PerSecond: 55403.56}},
		{"wrk with errors", parseWrk, wrkErrorText, outcome{Completed: 55528, Failed: 54321, PerSecond: 55403.56}},
		{"natkit", parseNatkit, `{"completed": 7, "failed": 1, "requests_per_second": 3.5, "document_bytes": 612}`,
			outcome{Completed: 7, Failed: 1, PerSecond: 3.5}},
	} {
		got, err := tt.parse([]byte(tt.text))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	for name, parse := range map[string]func([]byte) (outcome, error){"ab": parseAB, "wrk": parseWrk, "natkit": parseNatkit} {
		for _, text := range []string{"", "unable to connect to 127.0.0.1:18081 Connection refused\n", "{}"} {
			if got, err := parse([]byte(text)); err == nil || got != (outcome{}) {
				t.Errorf("%s made %v of %q", name, got, text)
			}
		}
	}
}

func TestParseStrace(t *testing.T) {
	for text, want := range map[string]int64{
		straceText: 6859,
		strings.Replace(straceText, "504 total", "    total", 1):       6859, // no call failed
		strings.Replace(straceText, "4      6859", "4 12345678901", 1): 12345678901,
	} {
		if got, err := parseStrace([]byte(text)); err != nil || got != want {
			t.Errorf("got %d, %v; want %d from:\n%s", got, err, want, text)
		}
	}
	if _, err := parseStrace([]byte("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted\n")); err == nil {
		t.Error("a failed strace gave a number")
	}
}
