package cli

import (
	"errors"
	"testing"

	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/report"
)

type full struct{ writes int }

func (f *full) Write([]byte) (int, error) {
	f.writes++
	return 0, errors.New("no space left on device")
}

func TestFindingsOnAFullDiskAreOneError(t *testing.T) {
	var disk full
	err := writeFindings(&disk, report.Style{}, "a.yaml", make([]gateway.Finding, manyFindings+3))
	if err == nil || err.Error() != "no space left on device" || disk.writes != 1 {
		t.Errorf("%d writes, %v", disk.writes, err)
	}
}
