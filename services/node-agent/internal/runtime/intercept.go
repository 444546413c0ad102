package runtime

import (
	"context"
	"errors"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sampan-io/sampan/services/node-agent/internal/images"
)

// intercept gives errors their gRPC code, and keeps a panic to its request.
func (s *Server) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.ErrorContext(ctx, "A CRI call panicked", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s panicked", info.FullMethod)
		}
	}()
	resp, err = handler(ctx, req)
	return resp, grpcError(err)
}

func (s *Server) interceptStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			s.log.Error("A CRI call panicked", "method", info.FullMethod, "panic", r, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "%s panicked", info.FullMethod)
		}
	}()
	return grpcError(handler(srv, stream))
}

func grpcError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Unknown
	switch {
	case errors.Is(err, errNotFound), errors.Is(err, images.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, errState):
		code = codes.FailedPrecondition
	case errors.Is(err, errInvalid):
		code = codes.InvalidArgument
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}
