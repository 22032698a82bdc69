package report

import (
	"bytes"
	"os"
	"testing"
)

func TestPageOut(t *testing.T) {
	var b bytes.Buffer
	if err := LabHTML(&b, madeUpReport(t)); err != nil {
		t.Fatal(err)
	}
	os.WriteFile("/tmp/x.html", b.Bytes(), 0o644)
	b.Reset()
	if err := LabHTML(&b, unmetReport(t)); err != nil {
		t.Fatal(err)
	}
	os.WriteFile("/tmp/x2.html", b.Bytes(), 0o644)
}
