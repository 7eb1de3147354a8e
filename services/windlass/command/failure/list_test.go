package failure

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestErrorsOfManyObjectsStaySeparate(t *testing.T) {
	var all, inner List
	inner.Add(errors.New("one"))
	inner.Add(status.Error(codes.NotFound, "two"))
	all.Add(inner.Err())
	all.Add(nil)
	all.Add(errors.New("three"))
	if len(all) != 3 || all.Err().Error() != "one\nfrom server (NotFound): two\nthree" {
		t.Errorf("got %d: %v", len(all), all.Err())
	}
	if (List{}).Err() != nil {
		t.Error("no failure is an error")
	}
}
