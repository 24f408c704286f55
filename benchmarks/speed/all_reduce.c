/* All-reduces over MPI, for SimGrid's smpirun: steps, seconds of computation, floats. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <smpi/smpi.h>

int main(int argc, char **argv)
{
  MPI_Init(&argc, &argv);
  int steps = atoi(argv[1]), rank;
  double compute_s = atof(argv[2]);
  int count = atoi(argv[3]);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float *own = SMPI_SHARED_MALLOC(count * sizeof(float));
  float *sum = SMPI_SHARED_MALLOC(count * sizeof(float));
  for (int step = 0; step < steps; step++) {
    smpi_sleep((unsigned int)compute_s);
    MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  if (rank == 0)
    printf("%f\n", MPI_Wtime());
  SMPI_SHARED_FREE(own);
  SMPI_SHARED_FREE(sum);
  MPI_Finalize();
  return 0;
}
