package collect

import (
	"fmt"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

// BenchmarkSurvey is what the other network namespaces cost a recording: a thousand that track
// nothing, and a thousand with some connections each. Each iteration is both readings.
func BenchmarkSurvey(b *testing.B) {
	testutil.NeedRoot(b)
	testutil.ShareHost(b)
	const namespaces = 1000
	var all []*netns.Handle
	for i := range namespaces {
		all = append(all, testutil.Namespace(b, fmt.Sprint("bench", i)))
	}
	survey := func(b *testing.B) {
		var examined, unlisted int64
		began := testutil.CPUTime(b)
		for b.Loop() {
			rec, err := Record(b.Context(), RecordOptions{Options: Options{MaxEntries: 1}, Others: &SurveyOptions{}})
			if err != nil {
				b.Fatal(err)
			}
			examined, unlisted = rec.Others.Examined, rec.Others.Unlisted
			b.ReportMetric(rec.Others.Seconds, "s-for-others")
		}
		b.ReportMetric((testutil.CPUTime(b)-began).Seconds()/float64(b.N), "CPU-s/op")
		b.ReportMetric(float64(examined), "examined")
		b.ReportMetric(float64(unlisted), "unlisted")
	}
	b.Run("empty", survey)
	for i, ns := range all {
		fill(b, ns, 20*i, 20)
	}
	b.Run("tracking", survey)
	b.Run("without", func(b *testing.B) {
		began := testutil.CPUTime(b)
		for b.Loop() {
			if _, err := Record(b.Context(), RecordOptions{Options: Options{MaxEntries: 1}}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric((testutil.CPUTime(b)-began).Seconds()/float64(b.N), "CPU-s/op")
	})
}
