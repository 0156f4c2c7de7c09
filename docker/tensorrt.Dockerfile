# syntax=docker/dockerfile:1.9
# Builds TensorRT engines and measures them, inside the image whose Triton serves them. No torch.
#   docker build -f docker/tensorrt.Dockerfile --build-arg TRITON=26.05 -t quietformer-tensorrt:26.05 .
# TRITON chooses TensorRT, see tensorrt_versions.toml: 26.05 for 10.16 (the last 10), 26.06 and later for 11. An engine runs
# with the TensorRT version it was built with and no other, so build with the tag that serves.
ARG TRITON=26.05
# Python 3.12 is what these images have; their packages are fetched here, so that nothing of pip stays in the image.
ARG PYTHON_IMAGE=python:3.12.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS packages
ARG TRITON
WORKDIR /build
COPY pyproject.toml constraints.txt docker/requirements.py docker/tensorrt_of_image.py docker/tensorrt_versions.toml ./
RUN python requirements.py cpu data > requirements.txt \
    && python tensorrt_of_image.py "${TRITON}" > tensorrt.txt \
    && pip install --no-cache-dir --target /opt/packages -c constraints.txt -r requirements.txt \
    && pip install --no-cache-dir --target /opt/packages --no-deps -r tensorrt.txt

FROM nvcr.io/nvidia/tritonserver:${TRITON}-py3
ARG TRITON
LABEL org.opencontainers.image.title="quietformer tensorrt" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=packages /opt/packages /opt/packages
COPY deploy /opt/quietformer/deploy
COPY quietformer /opt/quietformer/quietformer
COPY docker/run_step.py docker/tensorrt_of_image.py docker/tensorrt_versions.toml /opt/quietformer/docker/
ENV PYTHONPATH=/opt/quietformer:/opt/packages PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/cache
RUN python3 /opt/quietformer/docker/tensorrt_of_image.py "${TRITON}" --check \
    && install -d -m 1777 /srv/quietformer /srv/quietformer/runs /cache /models
USER 1000:1000
WORKDIR /srv/quietformer
VOLUME /srv/quietformer/runs /cache /models
# Jobs, not servers: they end.
HEALTHCHECK NONE
ENTRYPOINT ["python3", "/opt/quietformer/docker/run_step.py"]
CMD ["--help"]
